#include "hasten/comm/nested/objects.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "hasten/core/error.h"

namespace hasten::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string object_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ObjectsInAWorldOfOne, ComeBackAsTheyWent) {
  const Group alone;

  EXPECT_THAT(gather_object(alone, std::string("x")), ElementsAre("x"));
  EXPECT_EQ(broadcast_object(alone, 3), 3);
  EXPECT_THAT(broadcast_object_list(alone, std::vector{1, 2}), ElementsAre(1, 2));
  EXPECT_EQ(scatter_object(alone, std::vector{4}), 4);
}

TEST(Objects, TruncatedBytesAreACommError) {
  const Group alone;
  detail::Bytes message = {0};
  const auto cbor = nlohmann::json::to_cbor(std::string("a longer text"));
  message.insert(message.end(), cbor.begin(), cbor.end() - 3);

  EXPECT_THROW(detail::decode<std::string>(message, {alone, "gather_object", 1}), CommError);
  EXPECT_THROW(detail::decode<std::string>({}, {alone, "gather_object", 1}), CommError);
}

TEST(Objects, ARootOutsideTheGroupIsNamed) {
  EXPECT_THAT(object_error([] { broadcast_object(Group(), 1, 2); }), HasSubstr("broadcast_object with rank 2"));
  EXPECT_THAT(object_error([] { scatter_object(Group(), std::vector{1}, -1); }),
              HasSubstr("scatter_object with rank -1"));
}

}  // namespace
}  // namespace hasten::comm
