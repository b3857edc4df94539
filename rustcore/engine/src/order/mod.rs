//! Orders: which sample stands at which position of an epoch.
//!
//! Every order is a pure function of (order, number of samples or sampling, seed, epoch);
//! `docs/order.md` specifies each of them down to the bit. Two kinds exist:
//! *computed* orders answer any position in O(1) memory (sequential, and stable
//! from 2^20 samples on), *materialized* ones keep one entry per position.

mod burn;
mod dataloader_rs;
mod error;
mod feistel;
mod names;
mod permutation;
mod sampling;
mod shared;
mod stable;
mod stream;
mod table;
mod torch;

pub use error::PlanError;
pub(crate) use error::check;
pub use names::Order;
use permutation::Kind;
pub use permutation::{OrderSpec, Permutation};
pub use sampling::Sampling;
pub(crate) use shared::SharedPermutation;

/// Steps between two looks at the cancellation flag: below 5 ms of work.
pub(crate) const POLL_EVERY: u32 = 65_536;

/// Largest number of samples: indices travel as signed 64-bit integers.
const MAX_SAMPLES: u64 = i64::MAX as u64;
