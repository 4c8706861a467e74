"""Answer over HTTP what the commands print as JSON; no state, and no file of the server is read for a request."""
