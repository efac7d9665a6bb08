# pyright: basic
import json
import os

import django
from psycopg.conninfo import conninfo_to_dict

_database = conninfo_to_dict(os.environ["PROJECT_DATABASE_URL"])

SECRET_KEY = "of tests"
DEBUG = False
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "mysite.urls"
USE_TZ = True
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # quick
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
INSTALLED_APPS = [
    "horsies.contrib.django",
    "shop",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
]
if os.environ.get("PROJECT_BACKPORT"):
    INSTALLED_APPS += ["django_tasks", "mail"]
elif django.VERSION >= (6,):
    INSTALLED_APPS.append("mail")
if os.environ.get("PROJECT_WITHOUT_SHOP"):
    INSTALLED_APPS = ["horsies.contrib.django"]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _database["dbname"],
        "USER": _database.get("user", ""),
        "PASSWORD": _database.get("password", ""),
        "HOST": _database.get("host", ""),
        "PORT": _database.get("port", ""),
        **json.loads(os.environ.get("PROJECT_DATABASE", "{}")),
    }
}
if os.environ.get("PROJECT_OTHER"):  # another alias of the same database
    DATABASES["other"] = {**DATABASES["default"], "TEST": {"MIRROR": "default"}}
HORSIES = json.loads(os.environ.get("PROJECT_HORSIES", "{}"))
TASKS = {
    "default": {
        "BACKEND": "horsies.contrib.django.backend.HorsiesBackend",
        "QUEUES": json.loads(os.environ.get("PROJECT_QUEUES", '["default"]')),
    }
}
