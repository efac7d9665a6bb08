"""An order and the task that confirms it, in one SQLAlchemy transaction: both are committed, or neither.

Without this, a crash between `session.commit()` and a send loses the confirmation; the other way round, a worker may look for an
order that is not committed yet, or never will be. Here `horsies.tasks` is the outbox, and there is nothing to relay.

    $ export DATABASE_URL=postgresql+psycopg://localhost/shop   # both SQLAlchemy and horsies take it
    $ horsies worker examples.sqlalchemy_outbox:app &
    $ python -m examples.sqlalchemy_outbox
"""

import os

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from horsies import Horsies, TaskError, TaskResult

app = Horsies()
engine = create_engine(os.environ["DATABASE_URL"])


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    confirmed: Mapped[bool] = mapped_column(default=False)


@app.task("confirm_order")
def confirm_order(order_id: int) -> TaskResult[str, TaskError]:
    with Session(engine) as session, session.begin():
        order = session.get_one(Order, order_id)  # it is there: it was committed together with this task
        order.confirmed = True
        return TaskResult(ok=f"order {order.id} of a {order.item} is confirmed")


def place_order(session: Session, item: str) -> str:
    """Part of the caller's transaction; the id of the task that will confirm it."""
    order = Order(item=item)
    session.add(order)
    session.flush()  # gives the order its id
    return confirm_order.with_options(connection=session).send(order.id).task_id


def main() -> None:
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        task_id = place_order(session, "saddle")
        session.commit()  # now the worker wakes
    print(app.handle(task_id, confirm_order).get(timeout_ms=30_000).unwrap())

    with Session(engine) as session:
        task_id = place_order(session, "sleigh")
        session.rollback()  # neither the order nor the task was ever there
    print(app.handle(task_id, confirm_order).get(timeout_ms=0).unwrap_err().error_code)


if __name__ == "__main__":
    main()
