// The pickle machine; see pickle_reader.h. python_globals.cpp has the meaning of names.
#include "files/python/pickle_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_map>

#include "files/base/origin.h"
#include "files/python/pickle_finisher.h"
#include "files/python/python_globals.h"
#include "files/python/python_text.h"
#include "hasten/files/base/stand_in.h"

namespace hasten::files {
namespace {

using Kind = PythonValue::Kind;
constexpr uint64_t kMaxNodes = 100'000'000;
constexpr uint64_t kNodeBytes = 96, kValueBytes = 2 * sizeof(PythonValue), kTensorBytes = 512;

class Machine {
 public:
  Machine(std::string_view bytes, const PickleOptions& options)
      : bytes_(bytes),
        options_(options),
        budget_(options.max_memory != 0 ? options.max_memory : 4 * bytes.size() + (uint64_t{64} << 20)) {}

  ~Machine() {
    // A container may hold itself, until PickleFinisher cuts it: empty all that were remembered.
    if (finished_) return;
    PythonValue::Items freed;
    for (PythonValue& value : remembered_) {
      for_each_child(value, [&](PythonValue& child) { freed.push_back(std::move(child)); });
    }
  }

  PythonValue run() {
    while (step()) {
    }
    PythonValue result = pop();
    PickleFinisher finisher;
    for (PythonValue& value : remembered_) finisher.finish(value);
    finisher.finish(result);
    finished_ = true;
    return result;
  }

  size_t position() const noexcept { return at_; }
  size_t opcode_position() const noexcept { return opcode_at_; }
  std::set<std::string>& unknown_names() noexcept { return unknown_; }

 private:
  [[noreturn]] static void fail(std::string what) { throw BadPickle{std::move(what)}; }

  void charge(uint64_t bytes) {
    spent_ += bytes;
    if (spent_ > budget_ || ++nodes_ > kMaxNodes) {
      fail(text("its values take more than the ", budget_, " bytes allowed to ", bytes_.size(), " bytes of pickle"));
    }
  }

  // ---- input -----------------------------------------------------------------------------------------------------
  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - at_)
      fail(text("it ends ", bytes_.size() - at_, " bytes on, where ", count, " are expected"));
    const std::string_view part = bytes_.substr(at_, count);
    at_ += count;
    return part;
  }
  uint64_t number(size_t size) {
    const std::string_view part = take(size);
    uint64_t value = 0;
    for (size_t i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(part[i]);
    return value;
  }
  std::string_view line() {
    const size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) fail("a line of text has no end");
    const std::string_view part = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return part;
  }
  /// Returns a length of four bytes with sign, as protocol 1 and 2 have it.
  uint64_t signed_length() {
    const auto length = static_cast<int32_t>(number(4));
    if (length < 0) fail(text("a length of ", length));
    return static_cast<uint64_t>(length);
  }

  // ---- stack -----------------------------------------------------------------------------------------------------
  void push(PythonValue value) {
    charge(kValueBytes);
    stack_.push_back(std::move(value));
  }
  void push_node(PythonValue value, uint64_t content = 0) {
    charge(kNodeBytes + content);
    push(std::move(value));
  }
  void push_text(Kind kind, std::string content) {
    const size_t size = content.size();
    push_node(PythonValue::text_of(kind, std::move(content)), size);
  }
  PythonValue& top() {
    if (stack_.size() <= floor()) fail("its stack is empty where a value is needed");
    return stack_.back();
  }
  PythonValue pop() {
    PythonValue value = std::move(top());
    stack_.pop_back();
    return value;
  }
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  PythonValue::Items pop_to_mark() {
    if (marks_.empty()) fail("a mark is missing on its stack");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    marks_.pop_back();
    PythonValue::Items items(std::make_move_iterator(begin), std::make_move_iterator(stack_.end()));
    stack_.erase(begin, stack_.end());
    charge(kValueBytes * items.size());
    return items;
  }
  void push_tuple(size_t count) {
    PythonValue::Items items(count);
    for (size_t i = count; i-- > 0;) items[i] = pop();
    push_node(PythonValue::tuple(std::move(items)), kValueBytes * count);
  }

  // ---- memo ------------------------------------------------------------------------------------------------------
  void remember(uint64_t index) {
    const PythonValue& value = top();
    charge(kValueBytes);
    if (is_container(value)) {
      remembered_.push_back(value);
      charge(kValueBytes);
    }
    if (index == memo_.size()) {
      memo_.push_back(value);
    } else if (index < memo_.size()) {
      memo_[index] = value;
    } else {
      charge(64);
      far_memo_[index] = value;
    }
    ++memoized_;
  }
  void recall(uint64_t index) {
    if (index < memo_.size()) {
      push(memo_[index]);
      return;
    }
    const auto found = far_memo_.find(index);
    if (found == far_memo_.end()) fail(text("it refers to value number ", index, ", which it has not given"));
    push(found->second);
  }
  uint64_t line_number() {
    uint64_t value = 0;
    const std::string_view digits = line();
    if (digits.empty() || digits.size() > 18) fail("a reference is no number");
    for (const char digit : digits) {
      if (digit < '0' || digit > '9') fail("a reference is no number");
      value = 10 * value + static_cast<uint64_t>(digit - '0');
    }
    return value;
  }

  // ---- containers ------------------------------------------------------------------------------------------------
  void append(PythonValue& target, PythonValue::Items items) {
    charge(kValueBytes * items.size());
    if (target.is_object()) {
      auto& own = target.as_object().items;
      std::move(items.begin(), items.end(), std::back_inserter(own));
      return;
    }
    if (target.kind() != Kind::kList && target.kind() != Kind::kSet) fail(text("it appends to a ", target.type_name()));
    if (target.kind() == Kind::kSet) require_hashable_members(items);
    std::move(items.begin(), items.end(), std::back_inserter(target.as_items()));
  }
  void set_items(PythonValue& target, PythonValue::Items items) {
    if (items.size() % 2 != 0) fail("it sets a key without a value");
    if (!target.is_mapping() && !target.is_object()) fail(text("it sets keys of a ", target.type_name()));
    charge(kValueBytes * items.size());
    PythonValue::Pairs& pairs = target.is_object() ? target.as_object().pairs : target.as_pairs();
    for (size_t i = 0; i < items.size(); i += 2) {
      if (items[i].kind() > Kind::kString) require_hashable(items[i]);
      pairs.emplace_back(std::move(items[i]), std::move(items[i + 1]));
    }
  }

  // ---- names -----------------------------------------------------------------------------------------------------
  void push_global(std::string module, std::string name) {
    const uint64_t size = module.size() + name.size();
    push_node(global_of(std::move(module), std::move(name)), 2 * kNodeBytes + size);
  }
  void call(const PythonValue& callable, PythonValue args) {
    if (args.kind() != Kind::kTuple) fail(text("it calls with a ", args.type_name(), ", expected a tuple"));
    charge(kTensorBytes);
    if (auto known = call_known(callable, args)) {
      push(std::move(*known));
      return;
    }
    PythonValue::Object object;
    if (callable.kind() == Kind::kGlobal || callable.is_object()) {
      object.module = callable.as_object().module;
      object.name = callable.as_object().name + (callable.is_object() ? "()" : "");
      charge(object.module.size() + object.name.size());
    } else {
      object.module = "builtins";
      object.name = callable.type_name();
    }
    unknown_.insert(object.qualified());
    object.args = std::move(args);
    push_node(PythonValue::object(std::move(object)), sizeof(PythonValue::Object));
  }
  void persistent(const PythonValue& id) {
    if (!options_.persistent_load) fail("it has a persistent id, which belongs to a file of another form");
    charge(kTensorBytes);
    push(options_.persistent_load(id));
  }

  bool step();
  bool step_value(unsigned char opcode);
  bool step_text(unsigned char opcode);
  bool step_container(unsigned char opcode);
  bool step_memo(unsigned char opcode);
  bool step_object(unsigned char opcode);

  std::string_view bytes_;
  const PickleOptions& options_;
  uint64_t budget_, spent_ = 0, nodes_ = 0;
  size_t at_ = 0, opcode_at_ = 0;
  std::vector<PythonValue> stack_, memo_, remembered_;
  std::unordered_map<uint64_t, PythonValue> far_memo_;
  uint64_t memoized_ = 0;
  std::vector<size_t> marks_;
  std::set<std::string> unknown_;
  bool finished_ = false;
};

bool Machine::step_value(unsigned char opcode) {
  switch (opcode) {
    case 'N':
      push({});
      return true;
    case 0x88:
      push(true);
      return true;
    case 0x89:
      push(false);
      return true;
    case 'K':
      push(static_cast<int64_t>(number(1)));
      return true;
    case 'M':
      push(static_cast<int64_t>(number(2)));
      return true;
    case 'J':
      push(static_cast<int64_t>(static_cast<int32_t>(number(4))));
      return true;
    case 'G': {
      uint64_t bits = 0;
      for (const char byte : take(8)) bits = bits << 8 | static_cast<unsigned char>(byte);
      push(std::bit_cast<double>(bits));
      return true;
    }
    case 0x8a:
    case 0x8b: {
      const uint64_t size = opcode == 0x8a ? number(1) : signed_length();
      auto value = int_of_bytes(take(size));
      if (!value) fail(text("an integer of ", size, " bytes; expected at most 4096"));
      push_node(std::move(*value), 3 * size);
      return true;
    }
    case 'I':
    case 'L':
    case 'F': {
      auto value = number_of_text(line(), opcode);
      if (!value) fail("a number written as text is none");
      push_node(std::move(*value));
      return true;
    }
    default:
      return false;
  }
}

bool Machine::step_text(unsigned char opcode) {
  const auto unicode = [&](uint64_t size) { push_text(Kind::kString, std::string(take(size))); };
  const auto latin1 = [&](uint64_t size) { push_text(Kind::kString, utf8_of_latin1(take(size))); };
  const auto raw = [&](Kind kind, uint64_t size) { push_text(kind, std::string(take(size))); };
  switch (opcode) {
    case 'X':
      unicode(number(4));
      return true;
    case 0x8c:
      unicode(number(1));
      return true;
    case 0x8d:
      unicode(number(8));
      return true;
    case 'B':
      raw(Kind::kBytes, number(4));
      return true;
    case 'C':
      raw(Kind::kBytes, number(1));
      return true;
    case 0x8e:
      raw(Kind::kBytes, number(8));
      return true;
    case 0x96:
      raw(Kind::kByteArray, number(8));
      return true;
    case 'T':
      latin1(signed_length());
      return true;
    case 'U':
      latin1(number(1));
      return true;
    case 'S':
    case 'V': {
      auto words = opcode == 'S' ? unquoted(line()) : unescaped(line());
      if (!words) fail("a text with escapes is none");
      push_text(Kind::kString, std::move(*words));
      return true;
    }
    default:
      return false;
  }
}

bool Machine::step_container(unsigned char opcode) {
  const auto from_mark = [&](Kind kind) { push_node(PythonValue::items_of(kind, pop_to_mark())); };
  switch (opcode) {
    case '(':
      charge(sizeof(size_t));
      marks_.push_back(stack_.size());
      return true;
    case ')':
      push_node(PythonValue::tuple());
      return true;
    case 't':
      from_mark(Kind::kTuple);
      return true;
    case 'l':
      from_mark(Kind::kList);
      return true;
    case 0x91:
      from_mark(Kind::kFrozenSet);
      require_hashable_members(top().as_items());
      return true;
    case 0x85:
      push_tuple(1);
      return true;
    case 0x86:
      push_tuple(2);
      return true;
    case 0x87:
      push_tuple(3);
      return true;
    case ']':
      push_node(PythonValue::list());
      return true;
    case '}':
      push_node(PythonValue::dict());
      return true;
    case 0x8f:
      push_node(PythonValue::items_of(Kind::kSet));
      return true;
    case 'd': {
      PythonValue dict = PythonValue::dict();
      set_items(dict, pop_to_mark());
      push_node(std::move(dict));
      return true;
    }
    case 'a': {
      PythonValue::Items one(1);
      one[0] = pop();
      append(top(), std::move(one));
      return true;
    }
    case 'e':
    case 0x90: {
      auto items = pop_to_mark();
      append(top(), std::move(items));
      return true;
    }
    case 's': {
      PythonValue::Items pair(2);
      pair[1] = pop();
      pair[0] = pop();
      set_items(top(), std::move(pair));
      return true;
    }
    case 'u': {
      auto items = pop_to_mark();
      set_items(top(), std::move(items));
      return true;
    }
    default:
      return false;
  }
}

bool Machine::step_memo(unsigned char opcode) {
  switch (opcode) {
    case 'p':
      remember(line_number());
      return true;
    case 'q':
      remember(number(1));
      return true;
    case 'r':
      remember(number(4));
      return true;
    case 0x94:
      remember(memoized_);
      return true;
    case 'g':
      recall(line_number());
      return true;
    case 'h':
      recall(number(1));
      return true;
    case 'j':
      recall(number(4));
      return true;
    case '0':
      // POP takes a mark where nothing lies above it.
      if (!marks_.empty() && marks_.back() == stack_.size()) {
        marks_.pop_back();
      } else {
        pop();
      }
      return true;
    case '1':
      pop_to_mark();
      return true;
    case '2':
      push(top());
      return true;
    default:
      return false;
  }
}

bool Machine::step_object(unsigned char opcode) {
  switch (opcode) {
    case 'c': {
      std::string module(line());
      push_global(std::move(module), std::string(line()));
      return true;
    }
    case 0x93: {
      const PythonValue name = pop(), module = pop();
      if (!name.is_string() || !module.is_string()) fail("a name is no text");
      push_global(module.as_string(), name.as_string());
      return true;
    }
    case 'R': {
      PythonValue args = pop();
      call(pop(), std::move(args));
      return true;
    }
    case 0x81: {
      PythonValue args = pop();
      call(pop(), std::move(args));
      return true;
    }
    case 0x92: {
      const PythonValue named = pop();
      PythonValue args = pop();
      call(pop(), std::move(args));
      if (stack_.back().is_object() && named.is_mapping()) stack_.back().as_object().pairs = named.as_pairs();
      return true;
    }
    case 'b': {
      PythonValue state = pop();
      charge(kNodeBytes);
      build(top(), std::move(state));
      return true;
    }
    case 'i': {
      std::string module(line());
      const PythonValue callable = global_of(std::move(module), std::string(line()));
      call(callable, PythonValue::tuple(pop_to_mark()));
      return true;
    }
    case 'o': {
      PythonValue::Items items = pop_to_mark();
      if (items.empty()) fail("it makes an object without a class");
      const PythonValue callable = items.front();
      items.erase(items.begin());
      call(callable, PythonValue::tuple(std::move(items)));
      return true;
    }
    case 'Q':
      persistent(pop());
      return true;
    case 'P': {
      const std::string id(line());
      persistent(PythonValue(id));
      return true;
    }
    default:
      return false;
  }
}

/// Runs one opcode; returns false after STOP.
bool Machine::step() {
  opcode_at_ = at_;
  const auto opcode = static_cast<unsigned char>(take(1)[0]);
  if (opcode == '.') {
    if (!marks_.empty()) fail("it stops inside a container");
    return false;
  }
  if (opcode == 0x80) {
    if (const uint64_t protocol = number(1); protocol > 5)
      fail(text("it has protocol ", protocol, ", expected 0 to 5"));
    return true;
  }
  if (opcode == 0x95) {
    if (const uint64_t frame = number(8); frame > bytes_.size() - at_)
      fail(text("a frame of ", frame, " bytes goes beyond its end"));
    return true;
  }
  if (opcode == 0x98) return true;  // READONLY_BUFFER changes nothing here
  if (step_value(opcode) || step_text(opcode) || step_container(opcode) || step_memo(opcode) || step_object(opcode))
    return true;
  if (opcode == 0x97) fail("it refers to a buffer outside it");
  if (opcode >= 0x82 && opcode <= 0x84) fail("it refers to Python's registry of extensions");
  fail(text("it has the unknown opcode ", static_cast<int>(opcode)));
}

// Returns true if bytes that are no pickle from byte `at` on are a text. Pickles of protocol 0 are printable, too, but
// damage among the first few bytes of one is rare.
bool is_text(std::string_view bytes, size_t at, bool is_unknown_opcode) {
  if (at >= 16 || (bytes.size() < 8 && !is_unknown_opcode)) return false;
  return is_printable(bytes);
}

}  // namespace

Pickle read_pickle(std::string_view bytes, const std::string& path, const PickleOptions& options, uint64_t offset) {
  Machine machine(bytes, options);
  try {
    Pickle pickle{.value = machine.run()};
    pickle.size = machine.position();
    pickle.unknown_names = std::move(machine.unknown_names());
    return pickle;
  } catch (const BadPickle& error) {
    const size_t at = machine.opcode_position();
    if (offset == 0 && is_text(bytes, at, error.what.find("unknown opcode") != std::string::npos))
      refuse_text(path, bytes);
    fail_data(path, "its pickle is damaged at byte ", offset + at, ": ", error.what, ". Get the file again.");
  }
}

}  // namespace hasten::files
