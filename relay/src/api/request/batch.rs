//! Runs the rows of a batch concurrently: all requests are sent before any reply is awaited.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// Polls all futures together and returns their results in the given order. The first poll is in
/// that order too, so requests that a future sends before its first await keep the order.
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
