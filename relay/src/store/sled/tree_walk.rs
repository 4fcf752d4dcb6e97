//! Iterates over sled's keys and skips damaged pages. sled's own iterator returns the same
//! error for ever when it meets one. Here a damaged page is one item, and the iteration
//! continues after it. Reads only.

use std::cmp::Ordering;
use std::ops::Bound;

use sled::IVec;

use super::panic_guard::catch_sled_panic;

/// Limits the search for a page's edge. Each step halves a gap between keys, and keys have at
/// most 263 bytes.
const MAX_SEARCH_STEPS: u32 = 8 * 300;

pub(crate) struct TreeWalk<'a> {
    tree: &'a sled::Tree,
    low: Bound<Vec<u8>>,
    high: Bound<Vec<u8>>,
    reverse: bool,
    iter: Option<sled::Iter>,
}

/// A damaged page: an unknown number of records, usually up to 17, cannot be read.
#[derive(Debug)]
pub(crate) struct SkippedPage;

impl<'a> TreeWalk<'a> {
    pub(crate) fn new(
        tree: &'a sled::Tree,
        (low, high): (Bound<Vec<u8>>, Bound<Vec<u8>>),
        reverse: bool,
    ) -> Self {
        let iter = Some(tree.range((low.clone(), high.clone())));
        Self {
            tree,
            low,
            high,
            reverse,
            iter,
        }
    }

    /// The next item. Outer errors come from the disk and end the iteration.
    pub(crate) fn next(&mut self) -> sled::Result<Option<Result<(IVec, IVec), SkippedPage>>> {
        let Some(iter) = &mut self.iter else {
            return Ok(None);
        };
        let reverse = self.reverse;
        match catch_sled_panic(|| {
            if reverse {
                iter.next_back()
            } else {
                iter.next()
            }
            .transpose()
        }) {
            Ok(None) => Ok(None),
            Ok(Some((key, value))) => {
                let bound = Bound::Excluded(key.to_vec());
                *(if self.reverse {
                    &mut self.high
                } else {
                    &mut self.low
                }) = bound;
                Ok(Some(Ok((key, value))))
            }
            Err(sled::Error::Corruption { .. }) => {
                self.skip_damaged_page()?;
                Ok(Some(Err(SkippedPage)))
            }
            Err(other) => Err(other),
        }
    }

    fn skip_damaged_page(&mut self) -> sled::Result<()> {
        let edge = if self.reverse {
            self.last_key_before_damage()?
        } else {
            self.first_key_after_damage()?
        };
        let Some(edge) = edge else {
            self.iter = None;
            return Ok(());
        };
        *(if self.reverse {
            &mut self.high
        } else {
            &mut self.low
        }) = Bound::Included(edge);
        self.iter = Some(self.tree.range((self.low.clone(), self.high.clone())));
        Ok(())
    }

    /// The first position after the damaged page, if the range goes that far.
    fn first_key_after_damage(&self) -> sled::Result<Option<Vec<u8>>> {
        let start = bytes_of(&self.low);
        let end = bytes_of(&self.high);
        // Shorter and shorter prefixes of the start, each incremented, are longer and longer
        // steps forward.
        let steps = (1..=start.len())
            .rev()
            .filter_map(|len| successor(&start[..len]));
        let steps = steps.take_while(|step| *step < end).chain([end.clone()]);
        let Some(edge) = self.search(start.clone(), steps, Ordering::Greater)? else {
            return Ok(None);
        };
        // The search ends a few zero bytes after the edge, where the first key of the next page
        // may be.
        for shorter in (1..edge.len())
            .map(|len| &edge[..len])
            .filter(|&it| *it > *start)
        {
            if self.is_readable_from(shorter)? {
                return Ok(Some(shorter.to_vec()));
            }
        }
        Ok(Some(edge))
    }

    /// The last position before the damaged page, if the range goes that far.
    fn last_key_before_damage(&self) -> sled::Result<Option<Vec<u8>>> {
        let start = bytes_of(&self.high);
        let end = bytes_of(&self.low);
        let steps = (0..start.len()).rev().map(|len| start[..len].to_vec());
        let steps = steps.take_while(|step| *step > end).chain([end.clone()]);
        self.search(start.clone(), steps, Ordering::Less)
    }

    /// Steps away from `bad` until the page is passed, then bisects down to the page's edge.
    fn search(
        &self,
        mut bad: Vec<u8>,
        steps: impl Iterator<Item = Vec<u8>>,
        direction: Ordering,
    ) -> sled::Result<Option<Vec<u8>>> {
        let mut good = None;
        for step in steps {
            if self.is_readable_from(&step)? {
                good = Some(step);
                break;
            }
            bad = step;
        }
        let Some(mut good) = good else {
            return Ok(None);
        };
        for _ in 0..MAX_SEARCH_STEPS {
            let (low, high) = if direction == Ordering::Greater {
                (&bad, &good)
            } else {
                (&good, &bad)
            };
            let Some(middle) = midpoint(low, high) else {
                break;
            };
            if self.is_readable_from(&middle)? {
                good = middle;
            } else {
                bad = middle;
            }
        }
        Ok(Some(good))
    }

    /// Whether the iteration could continue from `key`. There is no other key between the last
    /// one that was read and the damaged page. So every position before the page leads into it,
    /// and only positions after it do not.
    fn is_readable_from(&self, key: &[u8]) -> sled::Result<bool> {
        let next = || {
            let next = if self.reverse {
                self.tree.range(..=key).next_back()
            } else {
                self.tree.range(key..).next()
            };
            next.transpose()
        };
        match catch_sled_panic(next) {
            Err(sled::Error::Corruption { .. }) => Ok(false),
            Err(other) => Err(other),
            Ok(_) => Ok(true),
        }
    }
}

fn bytes_of(bound: &Bound<Vec<u8>>) -> Vec<u8> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => key.clone(),
        Bound::Unbounded => Vec::new(),
    }
}

/// The smallest byte string after all that begin with `prefix`.
fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut successor = prefix.to_vec();
    *successor.last_mut()? = successor.last()?.checked_add(1)?;
    Some(successor)
}

/// A byte string about halfway between two others; `None` if they are practically adjacent.
fn midpoint(low: &[u8], high: &[u8]) -> Option<Vec<u8>> {
    let common = low.iter().zip(high).take_while(|(a, b)| a == b).count();
    let number = |key: &[u8]| {
        let mut window = [0; 16];
        let rest = &key[common..];
        let len = rest.len().min(16);
        window[..len].copy_from_slice(&rest[..len]);
        u128::from_be_bytes(window)
    };
    let (a, b) = (number(low), number(high));
    let middle = a + b.checked_sub(a).filter(|gap| *gap > 1)? / 2;
    Some([&low[..common], &middle.to_be_bytes()].concat())
}
