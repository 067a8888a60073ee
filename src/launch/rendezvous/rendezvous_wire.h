// Messages between launchers of an elastic run, as JSON texts in a Channel (docs/formats/rendezvous.md).
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "hasten/launch/rendezvous/rendezvous_message.h"
#include "launch/base/endpoint.h"

namespace hasten::launcher {

/// "Do you host the run?", the first message of a connection.
struct Ask {};

/// The answer. A host that takes over has a higher generation than the one before.
struct Answer {
  enum class Kind { kHost, kElsewhere, kVacant };
  Kind kind = Kind::kVacant;
  int generation = 0;
  Endpoint host = {};  ///< where the host is, if elsewhere
};

/// "The run is at `host`": from a host of a higher generation to one of a lower.
struct Claim {
  int generation = 0;
  Endpoint host = {};
};

using WireMessage = std::variant<Ask, Answer, Claim, NodeMessage, Order>;

std::string to_wire(const WireMessage& message);
/// Nothing if the text is no such message.
std::optional<WireMessage> from_wire(const std::string& text);

}  // namespace hasten::launcher
