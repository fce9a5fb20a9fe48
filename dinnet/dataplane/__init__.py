"""The controller's side of P4Runtime: sessions with switches, typed entities, and differences between wish and fact."""
