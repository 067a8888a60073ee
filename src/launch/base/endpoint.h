// Endpoints as users write them. The sockets themselves are core's; launchers use their names as their own.
#pragma once

#include <optional>
#include <string>

#include "hasten/core/socket.h"

namespace hasten::launcher {

using net::accept_from;
using net::address_towards;
using net::connect_error;
using net::connect_to;
using net::connect_within;
using net::Endpoint;
using net::host_name;
using net::interface_towards;
using net::is_loopback;
using net::is_this_machine;
using net::listen_at;
using net::local_end;
using net::remote_end;
using net::shown;
using net::Socket;

/// Reads "h:1" or "[::1]:1". Without a port it takes `default_port`. Returns nothing if the text behind the colon is no
/// port.
std::optional<Endpoint> find_endpoint(const std::string& word, int default_port);

/// Returns the same. Throws: UsageError instead of nothing.
Endpoint parse_endpoint(const std::string& word, int default_port);

}  // namespace hasten::launcher
