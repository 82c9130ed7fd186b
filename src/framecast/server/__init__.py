"""`framecast serve`: a page that shows a model at work, and the HTTP interface below it (docs/serve.md)."""
