// `hasten board --serve`: a server of two addresses, / (the page) and /data?after=VERSION (news), for one reader at a
// time. It answers only requests that name it as their host, so that no other site's page can read the runs through a
// browser.
#include <poll.h>
#include <sys/socket.h>

#include <chrono>

#include "hasten/core/error.h"
#include "hasten/core/socket.h"
#include "hasten/tracking/board/board.h"

namespace hasten::tracking {
namespace {

constexpr auto kPatience = std::chrono::seconds(2);

// The head of a request; "" if none comes in time.
std::string receive_head(const net::Socket& socket) {
  std::string bytes;
  while (bytes.find("\r\n\r\n") == std::string::npos && bytes.size() < 64 << 10) {
    if (!net::is_ready_within(socket, POLLIN, kPatience)) return "";
    char piece[4096];
    const ssize_t n = recv(socket.handle(), piece, sizeof piece, 0);
    if (n <= 0) return "";
    bytes.append(piece, static_cast<size_t>(n));
  }
  return bytes;
}

void send_answer(const net::Socket& socket, const std::string& status, const std::string& type,
                 const std::string& body) {
  const std::string whole =
      text("HTTP/1.1 ", status, "\r\nContent-Type: ", type, "\r\nContent-Length: ", body.size(),
           "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n", body);
  for (size_t sent = 0; sent < whole.size();) {
    if (!net::is_ready_within(socket, POLLOUT, kPatience)) return;
    const ssize_t n = send(socket.handle(), whole.data() + sent, whole.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return;
    sent += static_cast<size_t>(n);
  }
}

bool is_for_us(const std::string& head, const std::string& address) {
  const size_t at = head.find("\r\nHost: ");
  if (at == std::string::npos) return false;
  std::string host = head.substr(at + 8, head.find("\r\n", at + 8) - at - 8);
  host = host.substr(0, host.rfind(':'));
  const bool is_loopback = address == "127.0.0.1" || address == "localhost" || address == "::1";
  return !is_loopback || host == "127.0.0.1" || host == "localhost" || host == "[::1]";
}

}  // namespace

void serve_board(const std::vector<std::filesystem::path>& folders, const std::string& address, int port,
                 const std::function<void(const std::string&)>& started, const std::function<bool()>& ends) {
  auto [listener, problem] = net::listen_at({address, port});
  if (listener.handle() < 0) {
    throw UsageError(Origin{"board"}, "cannot listen at ", address, ':', port, ": ", problem,
                     ". Choose another --port or --bind.");
  }
  started("http://" + net::shown({address, net::local_end(listener).port}) + "/");
  int64_t version = -1;
  std::string data;
  const auto refresh = [&] {
    const int64_t now = runs_version(folders);
    if (now == version) return;
    data = board_data(read_runs(folders), now, /*live=*/true);
    version = now;
  };
  while (!ends()) {
    if (!net::is_ready_within(listener, POLLIN, std::chrono::milliseconds(200))) continue;
    const auto [connection, from] = net::accept_from(listener);
    if (connection.handle() < 0) continue;
    const std::string head = receive_head(connection);
    const std::string path = head.substr(0, head.find("\r\n"));
    if (!path.starts_with("GET ") || !is_for_us(head, address)) {
      send_answer(connection, "400 Bad Request", "text/plain", "no\n");
      continue;
    }
    try {
      refresh();
      if (path.starts_with("GET / ")) {
        send_answer(connection, "200 OK", "text/html; charset=utf-8", board_page(data));
      } else if (path.starts_with(text("GET /data?after=", version, " "))) {
        send_answer(connection, "204 No Content", "text/plain", "");
      } else if (path.starts_with("GET /data")) {
        send_answer(connection, "200 OK", "application/json", data);
      } else {
        send_answer(connection, "404 Not Found", "text/plain", "not here\n");
      }
    } catch (const DataError& error) {
      send_answer(connection, "500 Internal Server Error", "text/plain", error.what());
    }
  }
}

}  // namespace hasten::tracking
