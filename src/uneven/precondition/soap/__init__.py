"""SOAP: Adam in the eigenbasis of Shampoo's squares."""
