"""HTTP: middleware, bodies, streamed replies, errors. Knows no model and no engine."""
