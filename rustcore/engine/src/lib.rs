//! The engine of Tundish: order, window, arena and workers. No Python in here.
//!
//! A [`Plan`] says which samples are in which batch, as a pure function of seed and
//! epoch. A [`Run`] is one production of an epoch: workers of a [`Pool`] claim batches
//! from its [`window`], a [`Source`] fills memory of the [`Arena`], and the consumer takes
//! the cells (batches and failures alike), woken through a [`Waker`] or waiting by itself.
//!
//! ```
//! use std::sync::Arc;
//! use tundish_engine::{Arena, Loaded, Order, Plan, PlanSpec, Pool, Run, RunOptions, Source, Take, Task, Uneven};
//!
//! struct Squares;
//! impl Source for Squares {
//!     fn load(&self, task: &Arc<Task>) -> Result<Loaded, tundish_engine::Foreign> {
//!         Ok(Loaded::Object(Box::new(task.indices.iter().map(|i| i * i).collect::<Vec<u64>>())))
//!     }
//! }
//!
//! let spec = PlanSpec {
//!     samples: 5, order: Order::Sequential, seed: 0, epoch: 0, batch_size: 2,
//!     drop_last: false, rank: 0, world_size: 1, uneven: Uneven::Pad, sampling: None,
//! };
//! let plan = Arc::new(Plan::new(spec).unwrap());
//! let options = RunOptions {
//!     start: 0, window: 3, in_order: true, encode: false, arena: Arena::new(1 << 20), waker: None,
//!     timeout: None, samples: None, background: false, largest: Arc::default(),
//! };
//! let run = Run::new(plan, Arc::new(Squares), options);
//! let pool = Pool::new(2, "worker", &(Arc::new(|work: &mut dyn FnMut()| work()) as _)).unwrap();
//! run.start_on(&pool);
//! let mut batches = 0;
//! loop {
//!     match run.take() {
//!         Take::Ready(number, cell) => { assert_eq!(number, batches); assert!(cell.is_ok()); batches += 1; }
//!         Take::Pending => { run.wait(std::time::Duration::from_millis(50)); }
//!         Take::End | Take::Closed => break,
//!     }
//! }
//! assert_eq!(batches, 3);
//! ```
#![deny(missing_docs)]

mod arena;
mod array_source;
mod body;
mod cancel;
mod cell;
mod deadlines;
mod encode;
mod error;
mod fan;
mod memory;
mod order;
mod plan;
mod pool;
mod reader;
mod room;
mod run;
mod segment;
mod source;
mod sync;
mod waker;
pub mod window;

pub use arena::{Arena, MemoryListener, Need, Part, Reservation, SlotId, Usage};
pub use array_source::{ArraySource, Container, Field};
pub use body::{ALIGNMENT, Body};
pub use cancel::Cancel;
pub use cell::{Batch, Cell, Failure, Options as RunOptions, Supply};
pub use error::{Error, Foreign, NoSuchSample};
pub use fan::Fan;
pub use order::{Order, OrderSpec, Permutation, PlanError, Sampling};
pub use plan::{Plan, PlanSpec, Uneven};
pub use pool::{Bell, Job, MOST_LOST, Pool, ThreadMain, Work, Worker};
pub use reader::{Portion, Reader};
pub use run::Run;
pub use source::{Loaded, Source, Task};
pub use waker::Waker;
pub use window::Take;
