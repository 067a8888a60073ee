// torchrun's error file; see error_file.h.
#include "launch/workers/error_file.h"

#include <ctime>
#include <fstream>

#include "hasten/core/count_text.h"
#include "hasten/core/file.h"
#include "hasten/core/json.h"
#include "hasten/core/text.h"

namespace hasten::launcher {

namespace {

// The words are shown in a terminal and travel to other machines.
std::string shortened(const std::string& message) {
  if (message.size() <= kMaxMessageBytes) return message;
  return text(message.substr(0, kMaxMessageBytes), "\n… (the first ", kMaxMessageBytes, " of ",
              count_text(message.size(), "byte"), ")");
}

}  // namespace

std::optional<std::string> read_error_message(const std::string& path) {
  const auto content = core::read_json(core::read_file(path).value_or(""), {});
  const core::Value* message = content ? content->find("message") : nullptr;
  if (message != nullptr && message->is_map()) message = message->find("message");
  if (message == nullptr || !message->is_string()) return std::nullopt;
  return shortened(message->as_string());
}

void write_error_file(const std::string& path, const std::string& message) {
  // torchrun's reader takes the time from extraInfo and shows py_callstack, where it is given, as the
  // traceback.
  const auto extra = core::Value::map({{"timestamp", std::to_string(std::time(nullptr))}});
  const auto content = core::Value::map({{"message", core::Value::map({{"message", message}, {"extraInfo", extra}})}});
  std::ofstream(path) << content.to_json();
}

}  // namespace hasten::launcher
