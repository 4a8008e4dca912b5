"""`headrace up`: every service of Headrace as a process of this machine.

launcher ─► postgres, redis ─► control_plane ─► weights, trainer, inference ×N, proxy, env ─► ready
    └─ supervisor: restarts what dies        └─ reward pool: workers while the queue holds work
"""
