# pyright: basic, reportMissingImports=false
"""A module that workers import only if it is listed."""

import os

if os.environ.get("PROJECT_BACKPORT"):
    from django_tasks import task
else:
    from django.tasks import task


@task
def lost():
    return None
