"""Will it fit, how long will it take, how many at once: answered before anything is downloaded."""
