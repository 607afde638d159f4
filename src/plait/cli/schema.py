"""``plait schema``: the form of plait's files, for editors."""

import json
from enum import StrEnum
from typing import Annotated

import typer

from plait.cluster.spec import Cluster
from plait.files import FileValue
from plait.job.job import Job
from plait.plan.plan import Plan


class Form(StrEnum):
    """Files whose form can be asked for."""

    JOB = "job"
    CLUSTER = "cluster"
    PLAN = "plan"


FORMS: dict[Form, type[FileValue]] = {Form.JOB: Job, Form.CLUSTER: Cluster, Form.PLAN: Plan}


def command(form: Annotated[Form, typer.Argument(help="Which file.")] = Form.JOB) -> None:
    """Print the JSON Schema of a file, so that an editor completes and checks it.

    Example: plait schema job > job.schema.json, and in job.yaml: # yaml-language-server: $schema=job.schema.json
    """
    kind = FORMS[form]
    schema = kind.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["properties"]["format"]["const"] = kind.kind
    schema["required"] = ["format", *schema.get("required", [])]
    typer.echo(json.dumps(schema, indent=2))
