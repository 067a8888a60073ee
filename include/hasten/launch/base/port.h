// Free TCP ports on this machine, for the store that rank 0 of the workers opens at MASTER_PORT.
#pragma once

namespace hasten::launcher {

/// Returns a port that nothing on this machine uses now. It is not held: another process may take it before the workers
/// do, which the kernel's random choice makes unlikely. Throws: InternalError if the system has no port or no socket
/// left.
int free_port();

/// Returns true if nothing on this machine listens on `port` (1 to 65535).
/// Throws: InternalError if the system has no socket left.
bool port_is_free(int port);

}  // namespace hasten::launcher
