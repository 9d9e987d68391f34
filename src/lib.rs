//! proxy-operator: controllers and the health engine, as a library so that tests can reach it.

pub mod app;
pub mod args;
pub mod echo;
pub mod events;
pub mod health;
pub mod metrics;
pub mod pool;
pub mod providers;
pub mod proxy;
pub mod watch;
