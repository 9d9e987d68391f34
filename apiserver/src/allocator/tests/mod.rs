//! The allocator against its specification.

mod choice;
mod model;
mod store;
mod waiting;
