"""How the control plane itself is: health, readiness, capabilities, metrics."""
