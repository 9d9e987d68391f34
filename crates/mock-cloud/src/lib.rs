//! The mock provider's cloud: instances are real proxies on loopback addresses of their own.
//!
//! It runs as a process (`mock-cloud serve`) whose state survives whoever uses it, or within
//! another process through [`start`]. Instances boot after a delay, listen on and dial from an
//! address nobody else uses, and go away like machines do; faults are asked for through the API.
//! [`client::Client`] is how the rest of the project talks to it.
//!
//! The API, JSON over HTTP/1.1 without authentication, meant for loopback:
//!
//! | request | what it does |
//! |---|---|
//! | `POST /v1/zones/{zone}/instances` | create ([`model::CreateInstance`] to [`model::Created`]); 409 on a name in use |
//! | `GET`, `DELETE /v1/zones/{zone}/instances/{id or name}` | read, delete |
//! | `GET /v1/instances?zone=Z&label=NAME=VALUE` | list, oldest first |
//! | `GET /v1/operations/{id}` | an operation, with the error that came after the answer |
//! | `GET /admin/calls`, `GET /admin/created?label=NAME=VALUE` | the books: mutating calls, instances ever created |
//! | `GET`, `POST`, `DELETE /admin/faults` | faults for calls to come ([`faults::FaultRule`]) |
//! | `PUT /admin/settings` | delays ([`Settings`]) |
//! | `POST /admin/zones/{zone}/instances/{key}/preempt` | take the machine away |
//! | `PUT /admin/zones/{zone}/instances/{key}/behaviour` | let its proxy misbehave ([`faults::Behaviour`]) |

mod addresses;
pub mod client;
mod cloud;
mod disk;
pub mod faults;
pub mod model;
mod proxy;
pub mod records;
mod server;
mod state;
mod validate;

pub use cloud::{Cloud, Config};
pub use disk::Error as StateError;
pub use server::{Running, StartError, serve, start};
pub use state::Settings;
