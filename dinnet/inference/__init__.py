"""The inference backend: staged workers, prefill and decode apart, KV hand-off, scheduler, HTTP gateway."""
