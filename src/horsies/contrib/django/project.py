"""What `horsies worker` and its children load: the Django project that $DJANGO_SETTINGS_MODULE names, set up.

The app is at `horsies.contrib.django.project:app`, also for `$HORSIES_APP`.
"""

import json
import os

import django
from django.conf import settings

from horsies.contrib.django.application import TEST_DATABASES, the_app

# The worker of a test: its children use the test databases, too.
for _alias, _name in json.loads(os.environ.get(TEST_DATABASES, "{}")).items():
    settings.DATABASES[_alias]["NAME"] = _name

django.setup()  # does nothing in a process that Django has started
app = the_app()
