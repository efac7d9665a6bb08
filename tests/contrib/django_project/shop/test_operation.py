# pyright: basic
"""The admin and the dashboard, as users with different permissions see them."""

import asyncio

import httpx
from django.contrib.auth.models import Permission, User
from django.core.asgi import get_asgi_application
from django.db import connection
from django.test import TestCase, TransactionTestCase
from django.urls import reverse

from horsies.contrib.django import app
from horsies.contrib.django.dashboard import mount
from horsies.contrib.django.testing import drain
from shop import tasks


def make_user(name, *codenames):
    user = User.objects.create_user(name, is_staff=True)
    permissions = Permission.objects.filter(content_type__app_label="horsies", codename__in=codenames)
    assert len(permissions) == len(codenames)
    user.user_permissions.set(permissions)
    return user


def text_of(response):
    return response.content.decode()  # Django 5.2 has it as `text`


class Admin(TestCase):
    def setUp(self):
        names = ("taskrecord", "workflowrecord", "schedulerecord", "workerrecord")
        self.viewer = make_user("viewer", *(f"view_{name}" for name in names))
        self.operator = make_user("operator", *(f"view_{name}" for name in names), "operate")

    def page(self, model, query=""):
        return self.client.get(reverse(f"admin:horsies_{model}_changelist") + query)

    def act(self, action, *task_ids):
        data = {"action": action, "_selected_action": list(task_ids)}
        return self.client.post(reverse("admin:horsies_taskrecord_changelist"), data, follow=True)

    def test_all_lists_are_shown(self):
        self.client.force_login(self.viewer)
        handle = tasks.confirm.send(7)
        for model in ("taskrecord", "workflowrecord", "schedulerecord", "workerrecord"):
            assert self.page(model).status_code == 200, model
        assert handle.task_id in text_of(self.page("taskrecord"))
        for query in (f"?q={handle.task_id}", "?q=confirm", "?status__exact=PENDING"):
            assert handle.task_id in text_of(self.page("taskrecord", query)), query
        assert handle.task_id not in text_of(self.page("taskrecord", "?q=another"))
        assert handle.task_id not in text_of(self.page("taskrecord", "?status__exact=FAILED"))
        shown = self.client.get(reverse("admin:horsies_taskrecord_change", args=[handle.task_id]))
        assert "order_id" in text_of(shown)

    def test_payloads_of_sensitive_tasks_are_hidden(self):
        self.client.force_login(self.viewer)
        handle = tasks.charge.send("4242")
        drain()
        shown = self.client.get(reverse("admin:horsies_taskrecord_change", args=[handle.task_id]))
        assert "hidden" in text_of(shown)
        assert "4242" not in text_of(shown)

    def test_the_progress_of_sensitive_tasks_is_hidden_and_that_of_others_is_shown(self):
        self.client.force_login(self.viewer)
        for task, is_shown in ((tasks.charge, False), (tasks.place, True)):
            handle = task.send("4242")
            with connection.cursor() as cursor:  # as their workers do
                report = 'update horsies.tasks set progress = \'{"message": "half of it"}\' where id = %s'
                cursor.execute(report, [handle.task_id])
            shown = self.client.get(reverse("admin:horsies_taskrecord_change", args=[handle.task_id]))
            assert ("half of it" in text_of(shown)) is is_shown

    def test_the_error_of_a_workflow_hides_what_a_sensitive_task_says(self):
        self.client.force_login(self.viewer)
        for node, is_shown in ((tasks.charge.node()("4711"), False), (tasks.refuse.node()("4711"), True)):
            handle = app.workflow("charging", [node]).start()
            drain()
            shown = text_of(self.client.get(reverse("admin:horsies_workflowrecord_change", args=[handle.workflow_id])))
            assert "DECLINED" in shown
            assert ("card 4711" in shown) is is_shown

    def test_an_operator_pauses_workflows(self):
        self.client.force_login(self.operator)
        ids = [app.workflow("placing", [tasks.place.node()("a")]).start().workflow_id for _ in range(2)]
        data = {"action": "pause_workflow", "_selected_action": ids}
        for changed in (2, 0):
            shown = self.client.post(reverse("admin:horsies_workflowrecord_changelist"), data, follow=True)
            assert f"Pause selected workflows: {changed} of 2." in text_of(shown)
        assert {entry.action for entry in app.ops.list_audit()} == {"pause workflow"}

    def test_columns_without_an_index_do_not_sort(self):
        self.client.force_login(self.viewer)
        tasks.confirm.send(7)
        shown = text_of(self.page("taskrecord"))
        assert "sortable column-id" in shown
        assert "sortable column-task_name" not in shown

    def test_strangers_see_nothing(self):
        self.client.force_login(make_user("stranger"))
        assert self.page("taskrecord").status_code == 403

    def test_rows_cannot_be_changed(self):
        self.client.force_login(User.objects.create_superuser("root"))
        handle = tasks.confirm.send(7)
        assert self.client.get(reverse("admin:horsies_taskrecord_add")).status_code == 403
        path = reverse("admin:horsies_taskrecord_delete", args=[handle.task_id])
        assert self.client.post(path, {"post": "yes"}).status_code == 403
        assert self.client.post(path.replace("delete", "change"), {"status": "FAILED"}).status_code == 403
        assert handle.status() == "PENDING"

    def test_an_operator_cancels_and_retries(self):
        self.client.force_login(self.operator)
        handle = tasks.confirm.send(7)
        assert "Cancel: 1 CANCELLED" in text_of(self.act("cancel", handle.task_id))
        assert handle.status() == "CANCELLED"
        assert "Retry: 1" in text_of(self.act("retry", handle.task_id))
        assert handle.status() == "PENDING"
        assert {(entry.actor, entry.action) for entry in app.ops.list_audit()} == {
            ("operator", "cancel tasks"),
            ("operator", "retry tasks"),
        }

    def test_a_viewer_does_not(self):
        self.client.force_login(self.viewer)
        handle = tasks.confirm.send(7)
        self.act("cancel", handle.task_id)
        assert handle.status() == "PENDING"
        assert app.ops.list_audit() == []


class Dashboard(TransactionTestCase):
    def get(self, user=None, path="/horsies/"):
        if user:
            self.client.force_login(user)
        cookies = {name: morsel.value for name, morsel in self.client.cookies.items()}

        async def get():
            application = mount(get_asgi_application(), "/horsies")
            transport = httpx.ASGITransport(application)
            try:
                async with httpx.AsyncClient(
                    transport=transport, base_url="http://testserver", cookies=cookies
                ) as client:
                    return await client.get(path)
            finally:
                await application.dashboard.close()

        return asyncio.run(get())

    def test_it_is_for_those_who_are_logged_in_to_django(self):
        answer = self.get()
        assert answer.status_code == 303
        assert answer.headers["location"] == "/admin/login/?next=/horsies/"
        assert self.get(make_user("stranger")).status_code == 403
        assert self.get(make_user("viewer", "view_taskrecord")).status_code == 200
        shown = self.get(make_user("operator", "operate"), "/horsies/audit")
        assert shown.status_code in {200, 404}
        assert "operator" in self.get(make_user("o2", "operate")).text

    def test_all_else_is_served_by_django(self):
        assert self.get(path="/admin/login/").status_code == 200
        assert self.get(path="/horsiesandmore/").status_code == 404
