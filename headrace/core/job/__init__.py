"""The job machine: admission, groups, staleness, swaps, steps and evaluation of one job, as `handle(event) -> actions`.

plan.py      what the job asked for, frozen          state.py       everything it knows; every move is checked here
rows.py      attempts, groups, steps as they persist  admission.py   which groups start
events.py    what happened (past tense)               groups.py      members end: refill, ready, drop
actions.py   what to do (imperative)                  taking.py      staleness and the take
machine.py   dispatch and `check()`                   swaps.py       versions reach the workers
                                                      training.py    steps commit, replay, end
                                                      evaluation.py  one version, fixed seeds
                                                      pausing.py     pause, resume, what waits too long
"""
