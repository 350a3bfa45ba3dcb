//! Logins and rights through the public interface.

mod grants;
mod logins;
mod scram;
mod scram_client;
mod stored;
