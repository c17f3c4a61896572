"""The HTTP service: a live model, its durable store, and the page (extra ``service``)."""
