// CallName: the operation of a call, and the word for it in errors.
//
// A receive is the other side of a send, of which OpType has one. Its errors name it as the program does.
#pragma once

#include "hasten/comm/types/collective.h"

namespace hasten::comm {

struct CallName {
  OpType type;
  const char* word;

  CallName(OpType of) noexcept : type(of), word(comm::name_of(of)) {}  // NOLINT(google-explicit-constructor)
  constexpr CallName(OpType of, const char* called) noexcept : type(of), word(called) {}
};

inline const char* name_of(const CallName& call) noexcept {
  return call.word;
}

inline constexpr CallName kReceiving{OpType::kSend, "receive"};
inline constexpr CallName kReceivingAny{OpType::kSend, "receive_any"};
inline constexpr CallName kSendingAndReceiving{OpType::kSend, "batch_send_recv"};

}  // namespace hasten::comm
