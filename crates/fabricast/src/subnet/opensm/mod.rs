//! Multicast addresses granted by an InfiniBand subnet manager, such as OpenSM.
//!
//! [`mad`] is the bytes, [`client`] the memberships without I/O, [`umad`] libibumad, and `device` a
//! port that is opened again after an error. [`OpenSm`] joins them. The manager knows memberships
//! by port, not by process: if two processes of a host join one group, the first leave ends the
//! membership of both, until the other one's next check finds out. So one process of a host speaks
//! to the manager.
//!
//! A manager that restarts may have forgotten everything, and asks all ports to register again. The
//! kernel does not pass that on through libibumad. So the client asks the manager about one of its
//! memberships each second, and about all of them when one is missing or the port has changed.

pub mod client;
mod device;
pub mod mad;
pub mod mgid;
pub mod umad;

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use fabricast_proto::Time;

use self::client::{Client, Membership};
use self::device::{Device, Reopened, UmadDevice};
use self::mad::{Creation, Gid};
use self::umad::{Destination, Port};
use super::{News, Refusal, Subnet};
use crate::transport::{GroupAddress, Sleeper};

/// How often the port is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often answers are looked for where the descriptor cannot be watched: after an eighth of the
/// time since the last one, within these bounds.
const POLL_MIN: Duration = Duration::from_millis(1);
const POLL_MAX: Duration = Duration::from_millis(20);

/// How multicast groups are named and created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Name of the device, for example `mlx5_0`; `None`: the first one whose port is active.
    pub device: Option<String>,
    /// Number of the port, from 1; 0: the first active one.
    pub port: u8,
    /// Partition of the groups, with the bit of full members.
    pub p_key: u16,
    /// Key of the groups' datagrams. That of IP over InfiniBand must be the same, where the kernel
    /// joins the same groups.
    pub q_key: u32,
    /// Service level of groups that are created.
    pub sl: u8,
    /// Scope of the groups' addresses; 2 is the subnet, as the kernel has it.
    pub scope: u8,
}

impl Default for Config {
    /// The default partition, with the values that IP over InfiniBand has by default.
    fn default() -> Config {
        Config {
            device: None,
            port: 0,
            p_key: 0xffff,
            q_key: 0x0b1b,
            sl: 0,
            scope: 2,
        }
    }
}

/// Memberships that a subnet manager has granted to this host's port, or to others by proxy.
pub struct OpenSm {
    config: Config,
    device: Reopened,
    look_at: Time,
    client: Client,
    news: VecDeque<(Gid, News)>,
    /// When answers are looked for, if nothing watches and some are awaited.
    poll_at: Option<Time>,
    /// When the last answer came, or the first of those that are awaited was asked for.
    silent_since: Time,
}

impl OpenSm {
    /// Opens the port. Needs libibumad and the right to open `/dev/infiniband/umad*`.
    pub fn open(config: Config) -> io::Result<OpenSm> {
        let (mut name, mut number) = (config.device.clone(), config.port);
        let device = Reopened::new(Box::new(move || {
            let device = UmadDevice::open(name.as_deref(), number)?;
            // The memberships are those of this port, so no other one is opened later.
            let port = device.port()?;
            (name, number) = (Some(port.device), port.number);
            Ok(Box::new(device))
        }))?;
        Ok(OpenSm::over(config, device))
    }

    fn over(config: Config, device: Reopened) -> OpenSm {
        OpenSm {
            config,
            device,
            look_at: Time::ZERO,
            client: Client::new(),
            news: VecDeque::new(),
            poll_at: None,
            silent_since: Time::ZERO,
        }
    }

    /// The port, as the kernel knew it when it was last looked at.
    pub fn port(&self) -> &Port {
        self.device.port()
    }

    /// Begins a membership of another port of the same partition, by proxy. The news come by
    /// [`OpenSm::news_of_all`].
    pub fn join_for(&mut self, port: Gid, address: &GroupAddress, create: bool) {
        match self.membership(port, address) {
            Some(membership) => self.client.join(membership, address, create),
            None => {
                let refused = News::Refused(address.clone(), Refusal::Foreign);
                self.news.push_back((port, refused));
            }
        }
    }

    /// Undoes one [`OpenSm::join_for`].
    pub fn leave_for(&mut self, port: Gid, address: &GroupAddress) {
        match self.membership(port, address) {
            Some(membership) => self.client.leave(membership, address),
            None => self.news.push_back((port, News::Left(address.clone()))),
        }
    }

    /// Multicast LID of the address, while the port is a member.
    pub fn mlid(&self, port: Gid, address: &GroupAddress) -> Option<u16> {
        self.client.mlid(self.membership(port, address)?)
    }

    /// Like [`Subnet::news`], each with the port that it has happened to.
    pub fn news_of_all(&mut self) -> Option<(Gid, News)> {
        self.news.pop_front().or_else(|| self.client.news())
    }

    fn membership(&self, port: Gid, address: &GroupAddress) -> Option<Membership> {
        let ip = address.ip()?.ip();
        let group = mgid::group(ip, self.config.p_key, self.config.scope)?;
        Some(Membership { port, group })
    }

    /// Looks at the port. What has changed may have cost memberships.
    fn look(&mut self, now: Time) {
        self.look_at = now + LOOK_EVERY;
        let before = self.device.look();
        let port = self.device.port();
        if before == *port {
            return;
        }
        let (gid, name) = (port.gid, port.name());
        let news = match port.is_active {
            true if before.is_active => None,
            true => Some(News::PortUp { port: name }),
            false if before.is_active => Some(News::PortDown { port: name }),
            false => None,
        };
        self.news.extend(news.map(|news| (gid, news)));
        self.client.check_all();
    }

    /// Takes what has come in. An error closes the port, and what was asked is asked again when the
    /// port is open again.
    fn receive(&mut self, now: Time) {
        loop {
            match self.device.receive(now) {
                Ok(Some(received)) => {
                    self.silent_since = now;
                    match mad::decode(&received.mad) {
                        Some(answer) if received.is_answered => self.client.answered(now, &answer),
                        _ => self.client.not_answered(mad::transaction(&received.mad)),
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    self.client.none_answered();
                    self.notice(format!(
                        "port {} has failed, and is opened again: {error}",
                        self.device.port().name()
                    ));
                    return;
                }
            }
        }
    }

    fn notice(&mut self, text: String) {
        let gid = self.device.port().gid;
        self.news.push_back((gid, News::Notice(text)));
    }

    fn send(&mut self, now: Time) {
        let to = Destination {
            lid: self.device.port().sm_lid,
            queue_pair: mad::SA_QUEUE_PAIR,
            queue_key: mad::SA_QUEUE_KEY,
            sl: self.device.port().sm_sl,
        };
        let creation = Creation {
            q_key: self.config.q_key,
            p_key: self.config.p_key,
            sl: self.config.sl,
        };
        while let Some(request) = self.client.poll(now) {
            let mad = mad::encode(&mad::Request {
                transaction: request.transaction,
                method: request.method,
                group: request.membership.group,
                port: request.membership.port,
                creation: request.create.then_some(creation),
            });
            // While the port is down or closed, sending fails. The request is repeated then.
            let sent = self.device.send(to, &mad, request.answer_max);
            if sent.is_err() {
                self.client.not_answered(request.transaction);
            }
        }
    }
}

impl Subnet for OpenSm {
    fn name(&self) -> &'static str {
        "opensm"
    }

    fn create(&mut self, _: Time, address: &GroupAddress) {
        self.join_for(self.device.port().gid, address, true);
    }

    fn join(&mut self, _: Time, address: &GroupAddress) {
        self.join_for(self.device.port().gid, address, false);
    }

    fn leave(&mut self, _: Time, address: &GroupAddress) {
        self.leave_for(self.device.port().gid, address);
    }

    /// Never fails: a port that gives an error is opened again.
    fn step(&mut self, now: Time) -> io::Result<()> {
        if self.device.reopen(now) {
            let name = self.device.port().name();
            self.notice(format!("port {name} is open again"));
            self.look_at = now;
            self.client.check_all();
        }
        if now >= self.look_at {
            self.look(now);
        }
        self.receive(now);
        self.send(now);
        let is_polled =
            self.client.is_waiting() && self.device.is_open() && !self.device.is_watched();
        if self.poll_at.is_none() {
            self.silent_since = now;
        }
        let pause = (now.since(self.silent_since) / 8).clamp(POLL_MIN, POLL_MAX);
        self.poll_at = is_polled.then(|| now + pause);
        Ok(())
    }

    fn news(&mut self) -> Option<News> {
        self.news_of_all().map(|(_, news)| news)
    }

    fn due(&self) -> Option<Time> {
        let due = [
            Some(self.look_at),
            self.client.due(),
            self.poll_at,
            self.device.due(),
        ];
        due.into_iter().flatten().min()
    }

    fn attach(&mut self, sleeper: &Sleeper) -> io::Result<()> {
        self.device.attach(sleeper.descriptors());
        Ok(())
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.device.wait(timeout);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
