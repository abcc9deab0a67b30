"""The measurements of `twostroke bench`: each phase alone, and load on an endpoint."""
