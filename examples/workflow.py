"""A workflow that passes results from task to task, maps a task over a list that is only known at run time, and handles a failure as a value.

$ horsies worker examples.workflow:app --processes 2 &
$ python -m examples.workflow
"""

from horsies import Horsies, SuccessCase, SuccessPolicy, TaskError, TaskResult, each, from_node, result_from

app = Horsies()  # $HORSIES_DATABASE_URL, $DATABASE_URL, or an embedded PostgreSQL for development

TEXT = "my kingdom for a horse"


@app.task("split")
def split(text: str) -> TaskResult[list[str], TaskError]:
    return TaskResult(ok=text.split())


@app.task("measure")
def measure(word: str) -> TaskResult[int, TaskError]:
    return TaskResult(ok=len(word))


@app.task("translate")
async def translate(text: str) -> TaskResult[str, TaskError]:
    return TaskResult(err=TaskError(error_code="NO_DICTIONARY", message=f"there is no dictionary for {text!r}"))


@app.task("total")
def total(lengths: list[int]) -> TaskResult[int, TaskError]:
    return TaskResult(ok=sum(lengths))


@app.task("report")
def report(letters: TaskResult[int, TaskError], translation: TaskResult[str, TaskError]) -> TaskResult[str, TaskError]:
    other = translation.ok_value if translation.is_ok() else translation.err_value.error_code
    return TaskResult(ok=f"{letters.unwrap()} letters; {other}")


words = split.node(node_id="words")(TEXT)
lengths = measure.map_node(node_id="lengths", max_parallel=2)(each(words))  # one run for each word
letters = total.node(node_id="letters")(from_node(lengths))
translation = translate.node(node_id="translation")(TEXT)
end = report.node(node_id="report", allow_failed_deps=True)(result_from(letters), result_from(translation))

spec = app.workflow(
    "letters",
    tasks=[words, lengths, letters, translation, end],
    output=end,
    success_policy=SuccessPolicy(cases=[SuccessCase(required=[end])]),
)


def main() -> None:
    handle = spec.start()
    print(handle.get(timeout_ms=30_000).unwrap())
    print(handle.result_for(lengths).unwrap())
    print(handle.to_text())


if __name__ == "__main__":
    main()
