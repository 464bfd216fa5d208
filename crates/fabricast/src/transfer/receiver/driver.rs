//! A receiver's network once the transfer starts: its driver, the sender and the group.

use fabricast_proto::{Node, NodeId, Time};

use super::errors::refused;
use super::start_check::{is_shared, scheme_of};
use crate::bootstrap::message::{Start, Welcome};
use crate::driver::Driver;
use crate::error::Error;
use crate::net::{self, Net, random};
use crate::transfer::events::RecvEvent;
use crate::transfer::{ADDRESS, ROOT, RecvDriver, group_add};
use crate::transport::GroupAddress;

/// Opens the driver, and joins the group and its address. A receiver that comes late joins the
/// group only when the sender has admitted it.
pub fn open(
    net: Net,
    welcome: &Welcome,
    start: &Start,
    now: Time,
    tell: &mut dyn FnMut(RecvEvent),
) -> Result<RecvDriver, Error> {
    let (session, payload_size) = (welcome.session, start.payload_size);
    let scheme = scheme_of(start)?;
    // The first member is the sender. What the sender says about the others' addresses may be
    // false.
    let others = match is_shared(&scheme) {
        true => &start.addresses[..],
        false => &[],
    };
    let node = NodeId(welcome.node);
    let node = net::node_config(node, session, scheme, payload_size, &net);
    let mut driver: RecvDriver = Driver::new(Node::new(node, random()?), net);
    driver.transport().peer(ROOT, &start.root);
    if let Some(group) = &start.group {
        join_address(&mut driver, group, tell);
    }
    for (&node, address) in start.members.iter().skip(1).zip(others) {
        if node != welcome.node {
            driver.transport().hearsay(NodeId(node), address);
        }
    }
    if !start.late {
        driver
            .command(now, group_add(start, session))
            .map_err(refused)?;
    }
    Ok(driver)
}

/// Joins the group's address.
pub fn join_address(
    driver: &mut RecvDriver,
    group: &GroupAddress,
    tell: &mut dyn FnMut(RecvEvent),
) {
    if let Err(e) = driver.join(ADDRESS, group, true) {
        // This is no error: the sender will find out and use unicast.
        let text = format!("no multicast here ({e})");
        tell(RecvEvent::Notice { text });
    }
}
