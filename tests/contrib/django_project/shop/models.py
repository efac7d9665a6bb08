# pyright: basic
from django.db import models

from shop import tasks


class Order(models.Model):
    item = models.TextField(unique=True)
    confirmed = models.BooleanField(default=False)

    def confirm(self):
        """Models may import tasks, and tasks may import models."""
        return tasks.confirm.send(self.pk)
