//! What the operator tells of itself besides health and provider calls, which have their series
//! where they happen.

mod passes;
mod proxies;

pub use self::passes::Passes;
pub use self::proxies::register;
