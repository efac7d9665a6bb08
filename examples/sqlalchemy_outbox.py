"""Store an order and send the task that confirms it in one SQLAlchemy transaction: both are committed, or neither is.

If the task were sent after `session.commit()`, a crash between the two would lose the confirmation. If it were sent before, a worker could
look for an order that is not committed yet, or never will be. Here the table `horsies.tasks` is the outbox, and no relay process is needed.

    $ export DATABASE_URL=postgresql+psycopg://localhost/shop   # used by SQLAlchemy and by horsies
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
        order = session.get_one(Order, order_id)  # it exists: it was committed together with this task
        order.confirmed = True
        return TaskResult(ok=f"order {order.id} of a {order.item} is confirmed")


def place_order(session: Session, item: str) -> str:
    """Add an order in the caller's transaction, and return the id of the task that will confirm it."""
    order = Order(item=item)
    session.add(order)
    session.flush()  # assigns the id of the order
    return confirm_order.with_options(connection=session).send(order.id).task_id


def main() -> None:
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        task_id = place_order(session, "saddle")
        session.commit()  # now the worker is notified
    print(app.handle(task_id, confirm_order).get(timeout_ms=30_000).unwrap())

    with Session(engine) as session:
        task_id = place_order(session, "sleigh")
        session.rollback()  # neither the order nor the task was committed
    print(app.handle(task_id, confirm_order).get(timeout_ms=0).unwrap_err().error_code)


if __name__ == "__main__":
    main()
