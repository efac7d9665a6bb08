"""A script that defines a task, sends it several times and waits for the results.

$ horsies worker examples.script:app --processes 2 &
$ python -m examples.script
"""

from horsies import Horsies, TaskError, TaskResult

app = Horsies()  # $HORSIES_DATABASE_URL, $DATABASE_URL, or an embedded PostgreSQL for development

LINES = ("a horse, a horse", "my kingdom for a horse", "")


@app.task("count_words")
def count_words(text: str) -> TaskResult[int, TaskError]:
    if not text:
        return TaskResult(err=TaskError(error_code="NO_TEXT", message="there is nothing to count"))
    return TaskResult(ok=len(text.split()))


def main() -> None:
    handles = count_words.send_many(count_words.call(line) for line in LINES)
    for line, result in zip(LINES, app.gather(handles, timeout_ms=30_000), strict=True):
        if result.is_ok():
            print(f"{line!r} has {result.ok_value} words")
        else:
            print(f"{line!r}: {result.err_value.error_code}, {result.err_value.message}")


if __name__ == "__main__":
    main()
