"""One runner per job, behind a lease: read what waits, ask the core, write one transaction, then perform.

supervisor.py   queued jobs get their workers; jobs without a runner get one      planning.py    spec -> plan
runner.py       the turn: inbox -> machine -> transaction -> actions              repository.py  all SQL
fleet.py        which processes the job talks to, as they come and go             lease.py       who owns a job
links.py        the streams to them                                               performer.py   actions -> streams
probe.py        short generations that compare engine and trainer                 reporting.py   metrics, progress
"""
