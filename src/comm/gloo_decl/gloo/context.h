// Declares the two functions of Gloo's context that are called (see common/error.h here).
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
  void closeConnections();
};

}  // namespace gloo
