"""Routes for those who run the server: health, metrics, tokenize, detokenize and predict."""
