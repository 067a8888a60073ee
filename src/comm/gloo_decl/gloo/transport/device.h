// Declares the types of Gloo's transport that ProcessGroupGloo.hpp names (see common/error.h here).
#pragma once

namespace gloo::transport {
class Device;
class UnboundBuffer;
}  // namespace gloo::transport
