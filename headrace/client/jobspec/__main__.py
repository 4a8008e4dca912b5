"""`python -m headrace.client.jobspec > docs/job-spec.md`: the reference of the job spec."""

import sys

from headrace.client.jobspec.reference import reference

if __name__ == "__main__":
    sys.stdout.write(reference())
