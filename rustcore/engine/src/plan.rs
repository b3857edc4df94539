//! Plans: which sample indices make up batch i of one rank's epoch.

use std::sync::Arc;

use crate::cancel::Cancel;
use crate::order::{Order, OrderSpec, POLL_EVERY, PlanError, Sampling, SharedPermutation, check};

/// What happens when the samples do not divide evenly among the ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Uneven {
    /// Samples from the front of the epoch are repeated until all ranks have
    /// the same number.
    #[default]
    Pad,
    /// The last samples of the epoch are left out.
    Drop,
    /// The first ranks get one sample more.
    Keep,
}

impl Uneven {
    /// The name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pad => "pad",
            Self::Drop => "drop",
            Self::Keep => "keep",
        }
    }
}

impl std::fmt::Display for Uneven {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Uneven {
    type Err = PlanError;

    /// Reads `"pad"`, `"drop"` or `"keep"`.
    ///
    /// # Errors
    ///
    /// [`PlanError::Invalid`] naming the text and the three words.
    fn from_str(text: &str) -> Result<Self, PlanError> {
        let known = [Self::Pad, Self::Drop, Self::Keep];
        let found = known.into_iter().find(|uneven| uneven.name() == text);
        found.ok_or_else(|| {
            PlanError::invalid("uneven", &format!("{text:?}"), "use one of \"pad\", \"drop\", \"keep\"")
        })
    }
}

/// Everything that decides which samples stand in which batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanSpec {
    /// Number of samples of the dataset, at most 2^63 - 1; ignored with a sampling.
    pub samples: u64,
    /// The order of the epoch.
    pub order: Order,
    /// The seed; the torch orders use its low 32 bits.
    pub seed: u64,
    /// The epoch's number.
    pub epoch: u64,
    /// Samples in one batch of one rank, at least 1.
    pub batch_size: u64,
    /// Whether a last, shorter batch is left out.
    pub drop_last: bool,
    /// This rank, below `world_size`.
    pub rank: u64,
    /// Number of ranks the epoch is split among, 1 to 2^32 - 1.
    pub world_size: u64,
    /// What happens to samples that do not divide evenly.
    pub uneven: Uneven,
    /// What a sampler draws in the epoch, instead of every sample once.
    pub sampling: Option<Arc<Sampling>>,
}

impl PlanSpec {
    /// What the order of the epoch is a function of.
    fn order_spec(&self) -> OrderSpec {
        OrderSpec {
            order: self.order,
            samples: self.samples,
            seed: self.seed,
            epoch: self.epoch,
            global_batch: self.batch_size.saturating_mul(self.world_size),
            sampling: self.sampling.clone(),
        }
    }
}

/// One rank's epoch as batches of sample indices, computed when asked for.
///
/// Ranks slice the one global order strided (`rank`, `rank + world_size`, …), so
/// global batch i is the same set of samples for any number of ranks with the
/// same global batch size. A plan may be used from any number of threads.
///
/// # Examples
///
/// ```
/// use tundish_engine::{Cancel, Order, Plan, PlanSpec, Uneven};
///
/// let plan = Plan::new(PlanSpec {
///     samples: 10,
///     order: Order::Torch,
///     seed: 7,
///     epoch: 0,
///     batch_size: 4,
///     drop_last: false,
///     rank: 0,
///     world_size: 1,
///     uneven: Uneven::Pad,
///     sampling: None,
/// })?;
/// let mut indices = Vec::new();
/// plan.indices(2, &Cancel::new(), &mut indices)?;
/// assert_eq!(indices, [8, 0]);
/// # Ok::<(), tundish_engine::PlanError>(())
/// ```
#[derive(Debug)]
pub struct Plan {
    spec: PlanSpec,
    permutation: Arc<SharedPermutation>,
    /// Positions of the whole epoch.
    positions: u64,
    /// This rank's samples before `drop_last`.
    shard: u64,
}

impl Plan {
    /// Checks a description and makes its plan, in O(1) time and memory.
    ///
    /// # Errors
    ///
    /// [`PlanError::Invalid`] for a batch size of 0, a world size of 0 or of
    /// 2^32 and more, a rank outside of the world, more samples than the
    /// order can hold, or an order that the sampling cannot have.
    pub fn new(spec: PlanSpec) -> Result<Self, PlanError> {
        let order = validate(&spec)?;
        let positions = order.positions();
        let shard = match spec.uneven {
            Uneven::Pad => positions.div_ceil(spec.world_size),
            Uneven::Drop => positions / spec.world_size,
            Uneven::Keep => own_share(&spec, positions),
        };
        Ok(Self { spec, permutation: SharedPermutation::of(order), positions, shard })
    }

    /// The description this plan was made from.
    pub fn spec(&self) -> &PlanSpec {
        &self.spec
    }

    /// The number of batches this rank gets.
    pub fn batches(&self) -> u64 {
        if self.spec.drop_last {
            self.shard / self.spec.batch_size
        } else {
            self.shard.div_ceil(self.spec.batch_size)
        }
    }

    /// The number of positions of the whole epoch: the samples of the dataset, or what
    /// the sampling draws.
    pub fn positions(&self) -> u64 {
        self.positions
    }

    /// About how many steps the first use takes before it has its indices: entries
    /// built, and draws of earlier epochs walked over if none of them is remembered.
    ///
    /// A step takes some nanoseconds. 0 where every position is computed by itself.
    pub fn work(&self) -> u64 {
        self.permutation.work()
    }

    /// The number of samples in this rank's batches, padding included.
    ///
    /// `samples() - padded() + dropped()`, summed over all ranks, is
    /// [`Plan::positions`].
    pub fn samples(&self) -> u64 {
        if self.spec.drop_last { self.batches() * self.spec.batch_size } else { self.shard }
    }

    /// How many samples of this rank's batches repeat samples from the front.
    pub fn padded(&self) -> u64 {
        self.samples().saturating_sub(own_share(&self.spec, self.positions))
    }

    /// How many samples of this rank's share stand in none of its batches.
    pub fn dropped(&self) -> u64 {
        own_share(&self.spec, self.positions).saturating_sub(self.samples())
    }

    /// The number of samples in batch `batch`; 0 past the last one.
    pub fn batch_len(&self, batch: u64) -> u64 {
        if batch >= self.batches() {
            return 0;
        }
        let start = batch * self.spec.batch_size;
        self.spec.batch_size.min(self.shard - start)
    }

    /// Computes the order now instead of at the first [`Plan::indices`].
    ///
    /// Blocks. The work is done once: other callers wait for the one at work,
    /// and plans of the same epoch share the result. A call that fails or is
    /// cancelled leaves the plan as it was; the next one starts anew.
    ///
    /// # Errors
    ///
    /// As [`Permutation::build`](crate::Permutation::build).
    pub fn prepare(&self, cancel: &Cancel) -> Result<(), PlanError> {
        self.permutation.get(cancel).map(drop)
    }

    /// Writes the sample indices of batch `batch` into `out`, replacing what is there.
    ///
    /// Prepares the plan if nobody has. After an error the content of `out` is
    /// not specified.
    ///
    /// # Errors
    ///
    /// [`PlanError::Invalid`] if there is no such batch or no memory for it,
    /// [`PlanError::Cancelled`] soon after `cancel` was raised, and the errors of
    /// [`Plan::prepare`].
    pub fn indices(&self, batch: u64, cancel: &Cancel, out: &mut Vec<u64>) -> Result<(), PlanError> {
        out.clear();
        let len = self.batch_len(batch);
        if len == 0 {
            let reason = format!("the epoch has {} batches on this rank", self.batches());
            return Err(PlanError::invalid("batch", &batch, reason));
        }
        if out.try_reserve(len as usize).is_err() {
            let reason = format!("no memory for a batch of {len} indices; use a smaller one");
            return Err(PlanError::invalid("batch_size", &self.spec.batch_size, reason));
        }
        let mut permutation = self.permutation.get(cancel)?.reader();
        let first = batch * self.spec.batch_size;
        for place in first..first + len {
            if place % u64::from(POLL_EVERY) == 0 {
                check(cancel)?;
            }
            let position = self.spec.rank + place * self.spec.world_size;
            // Past the end only when padding: the epoch starts over.
            out.extend(permutation.get(position % self.positions));
        }
        Ok(())
    }
}

/// The samples that fall to this rank when none is padded or dropped.
fn own_share(spec: &PlanSpec, positions: u64) -> u64 {
    let extra = spec.rank < positions % spec.world_size;
    positions / spec.world_size + u64::from(extra)
}

/// Refuses what cannot be planned, naming the argument and the value.
fn validate(spec: &PlanSpec) -> Result<OrderSpec, PlanError> {
    if spec.batch_size == 0 {
        return Err(PlanError::invalid("batch_size", &0, "must be at least 1"));
    }
    if spec.world_size == 0 || spec.world_size > u64::from(u32::MAX) {
        let reason = "must be at least 1 and at most 2**32 - 1";
        return Err(PlanError::invalid("world_size", &spec.world_size, reason));
    }
    if spec.rank >= spec.world_size {
        let reason = format!("must be below world_size={}", spec.world_size);
        return Err(PlanError::invalid("rank", &spec.rank, reason));
    }
    let order = spec.order_spec();
    order.check()?;
    Ok(order)
}
