// Values as they lie in memory, for files that hold them so.
#pragma once

#include <initializer_list>
#include <string>

namespace hasten::data {

template <class Value>
std::string raw_values(std::initializer_list<Value> list) {
  return {reinterpret_cast<const char*>(list.begin()), list.size() * sizeof(Value)};
}

}  // namespace hasten::data
