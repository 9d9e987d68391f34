//! proxy-operator: controllers and the health engine, as a library so that tests can reach it.

pub mod echo;
pub mod health;
