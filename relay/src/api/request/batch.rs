//! Many requests at once, in order: all are handed over before any is waited for.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// Drives all futures together and gives their results in their own order. They are first polled in that order, so
/// what each does before it first waits happens in that order too.
pub(crate) async fn join_in_order<F: Future>(
    futures: impl IntoIterator<Item = F>,
) -> Vec<F::Output> {
    let mut rows: Vec<PolledFuture<F>> = futures
        .into_iter()
        .map(|f| PolledFuture::Waiting(Box::pin(f)))
        .collect();
    poll_fn(|cx| {
        let mut waiting = false;
        for row in &mut rows {
            if let PolledFuture::Waiting(future) = row {
                match future.as_mut().poll(cx) {
                    Poll::Ready(output) => *row = PolledFuture::Done(output),
                    Poll::Pending => waiting = true,
                }
            }
        }
        if waiting {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
    let done = |row| match row {
        PolledFuture::Done(output) => Some(output),
        PolledFuture::Waiting(_) => None,
    };
    rows.into_iter().filter_map(done).collect()
}

enum PolledFuture<F: Future> {
    Waiting(Pin<Box<F>>),
    Done(F::Output),
}
