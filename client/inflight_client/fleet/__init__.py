"""Several servers behind one client: which one gets a request, and which ones are out of order."""
