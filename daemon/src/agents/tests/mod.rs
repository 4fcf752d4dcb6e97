//! Tests over all adapters: scripted transcripts, recordings of real programs, random input and
//! limits of the stored state. Compiled for tests only.

#[cfg(test)]
pub(crate) mod event_text;
#[cfg(test)]
pub(crate) mod random_input;
#[cfg(test)]
pub(crate) mod recordings;
#[cfg(test)]
pub(crate) mod scripted_transcripts;
#[cfg(test)]
pub(crate) mod snapshot_size;
#[cfg(test)]
pub(crate) mod stored_state;
