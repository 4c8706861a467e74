"""HTTP server of the commands' JSON answers; no state, and no file of the server is read for a request."""
