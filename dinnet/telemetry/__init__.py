"""In-band network telemetry: what switches write into packets and report about them."""
