// A second copy of the library in the process of interceptor_test.cpp.
#include <torch/types.h>

#include <memory>
#include <string>

#include "hasten/core/error.h"
#include "hasten/interception/interceptor.h"

namespace {

struct Nothing : hasten::interception::Interceptor {
  bool intercept(const c10::OperatorHandle&, hasten::interception::Stack&) override { return false; }
};

}  // namespace

/// The words of the error, "" if there was none.
extern "C" const char* second_copy_intercepts() {
  static std::string words;
  try {
    hasten::interception::add_interceptor(torch::ones({1}), std::make_shared<Nothing>());
    words = "";
  } catch (const hasten::UsageError& error) {
    words = error.what();
  }
  return words.c_str();
}
